//! Reads the fields of `spec` from a tree.

mod container;
mod probe;
mod security;
mod spec;
mod volume;

pub(super) use spec::read as read_spec;
