"""The pipeline: Spark reads, writes, loads and counts what topics hold. numpy, pyarrow and pyspark are imported in this package only."""
