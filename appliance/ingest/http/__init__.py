"""HTTP/1.1, HTTP/2 and gRPC, the path table, and the inputs that are HTTP alone."""
