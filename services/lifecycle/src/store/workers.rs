//! The workers table: who is alive until when, and where callers reach them.
