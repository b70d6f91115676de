"""What Tape can do, measured beside what else there is: `python -m bench`."""

import os

# Processes are started beside open channels here; gRPC would remark on each.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
