//! Pods that are bound to this node.
