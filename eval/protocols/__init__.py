"""The protocols of benchmarks: LFW, IJB-B and IJB-C."""
