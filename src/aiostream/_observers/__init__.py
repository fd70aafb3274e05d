"""What watches the awaits: the parts of the traces."""
