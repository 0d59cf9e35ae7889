"""What is written by a program and kept beside what people write: the types of the client, the page of the commands."""
