"""Agent Lightning 0.1's server: an error for each of its names says what replaces it."""

from relight.exports import getter

__getattr__ = getter(__name__)
