"""What tests and the load test both need: real boxes, clusters, machines with systemd, disks that fail, clients and senders that others wrote."""
