"""How a wait is armed and carried out."""
