"""The comparison of the kubelet's own PLEG with ours. `bench/run` is where it begins; bench/README.md says what it measures."""
