-- Lists of runs in one state, newest first.
CREATE INDEX runs_by_state ON runs (tenant, state, run_id);
