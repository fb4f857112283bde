//! The program as its users run it, on files: one program of tests, as each takes seconds to link.

#[macro_use]
extern crate testkit;

mod access;
mod adaptive;
mod alerts;
mod archive_names;
mod care;
mod choice;
mod copy_backup;
mod counts;
mod damage;
mod delta;
mod durable;
mod everyday;
mod export;
mod fidelity;
mod forecast;
mod foreign;
mod full_disk;
mod history;
mod hostile;
mod instant;
mod kept_archives;
mod kill;
mod large;
mod look;
mod loss;
mod lost_pages;
mod meanwhile;
mod memory;
mod mount;
mod mounts;
mod named;
mod private;
mod random_access;
mod reach;
mod refused;
mod remembered_damage;
mod replaced;
mod reports;
mod restore;
mod round;
mod roundtrip;
mod scope;
mod slow;
mod stock_tools;
mod stream;
mod streamed;
mod stumbles;
mod sums;
mod systemd;
mod target;
mod unheard;
mod verdict;

use testkit::runs;
