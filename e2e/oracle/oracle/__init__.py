"""The kubelet as the oracle for `pleg node`: see ../README.md."""
