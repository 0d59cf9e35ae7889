"""Certified kernels as a Python package that pip installs: pure text, so that a machine without torch can make it.

package = make_package("softmax", PROBLEM_SOURCE, [Winner(...)])
name, archive = sdist(package)          # or wheel(package); the same package always gives the same bytes
"""

from api.packaging.archives import Archive, sdist, wheel
from api.packaging.contents import CannotPackage, Package, Winner, make_package

__all__ = ["Archive", "CannotPackage", "Package", "Winner", "make_package", "sdist", "wheel"]
