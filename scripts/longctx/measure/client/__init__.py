"""One streaming request and the arrival times of its tokens."""
