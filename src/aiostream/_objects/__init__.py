"""What streams, events and graphs are made of."""
