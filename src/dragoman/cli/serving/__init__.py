"""What `dragoman serve` needs beside the gateway itself: logs, the banner, the socket and the workers."""
