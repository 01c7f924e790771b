//! Events of pods and of the node.
