"""An ordinary Flower app with PyTorch."""
