//! Repositories from the first backup to the last prune, profiles, and what the documents tell people to type.

#[macro_use]
extern crate testkit;

mod cold;
mod copy;
mod documents;
mod incremental;
mod json_lines;
mod life;
mod operations;
mod over_memory;
mod pax_tools;
mod profiles;
mod sealed;
