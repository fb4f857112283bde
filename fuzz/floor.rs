//! Tools of the fuzz targets: a budget of memory, and a connection without its other side.

#[path = "floor/budget.rs"]
pub mod budget;
#[path = "floor/wire.rs"]
pub mod wire;
