"""What all others stand on: checks, errors, the seam to the driver."""
