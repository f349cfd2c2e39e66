"""One streaming request and what arrived when."""
