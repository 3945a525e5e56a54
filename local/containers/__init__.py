"""nightshift's images, and what docker-compose.yaml runs in them."""
