"""Normalizing flows on spheres."""
