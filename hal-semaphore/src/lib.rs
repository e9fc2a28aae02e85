//! Timeline semaphores and pending queue actions for queue-based accelerators.
#![forbid(unsafe_code)]
