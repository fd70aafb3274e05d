"""What pools and servers are made of."""
