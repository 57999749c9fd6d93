"""Consumer groups and their committed offsets: rules and formats, no socket, file, clock or chance."""
