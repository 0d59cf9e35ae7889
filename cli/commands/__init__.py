"""The commands of `kernelwright`, one module for each family; each is imported only when it is called."""
