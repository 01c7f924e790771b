//! The node's own HTTPS server.
