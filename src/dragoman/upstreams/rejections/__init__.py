"""What upstreams reject, and how a request is changed so that they accept it. Pure: no I/O, no clock."""
