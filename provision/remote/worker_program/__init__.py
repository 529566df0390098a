"""Program that runs on a worker machine."""
