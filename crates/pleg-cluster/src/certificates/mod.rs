//! The node's certificates: bootstrap by a token, rotation, files.
