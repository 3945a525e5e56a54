module nightshift/benchmarks/kserve

go 1.22
