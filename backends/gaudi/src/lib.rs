//! Intel Gaudi and Gaudi 2, through the habanalabs kernel driver's own interface.

pub mod executable;
pub mod generation;
pub mod kmd;
pub mod packet;
