"""Kill runs at random moments, again and again: they must end with the bits of an undisturbed run."""
