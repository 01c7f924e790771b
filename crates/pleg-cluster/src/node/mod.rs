//! The Node object and its lease.
