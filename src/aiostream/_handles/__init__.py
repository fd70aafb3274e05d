"""The driver's handles: who owns them, and how other libraries' are used."""
