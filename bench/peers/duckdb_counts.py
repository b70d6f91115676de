"""`LAKE START_MS BUCKET_MS BUCKETS RUNS`: count the Parquet files of an archive with DuckDB, as JSON."""

from __future__ import annotations

import json
import sys
import time

import duckdb


def main() -> None:
    """Best of several, after a first time."""
    lake, *numbers = sys.argv[1:]
    start, bucket, buckets, runs = map(int, numbers)
    files = f"read_parquet('{lake}/**/*.parquet', hive_partitioning = true)"
    sql = (
        f"SELECT (ts_ms - {start}) // {bucket}, type, tenant, count(*) FROM {files}"
        f" WHERE ts_ms >= {start} AND ts_ms < {start + buckets * bucket} GROUP BY ALL"
    )
    rows, times = duckdb.sql(sql).fetchall(), []
    for _ in range(runs):
        began = time.perf_counter()
        rows = duckdb.sql(sql).fetchall()
        times.append(time.perf_counter() - began)
    print(json.dumps({"seconds": min(times), "rows": rows}))


if __name__ == "__main__":
    main()
