//! Qualcomm Cloud AI 100, through the `qaic` kernel driver's own interface.

pub mod kmd;
