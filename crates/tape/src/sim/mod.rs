//! A simulated drive: a cartridge in a file, a motor, faults.
//!
//! It behaves as a drive behind the `st` driver: marks, places, both kinds of early warning, errors
//! that are reported late, resets, write protection, speeds in steps, and the time that a start costs.
//! A [`SimDevice`] is a [`crate::Device`], so [`crate::TapeDrive`] and other programs (by
//! `fullbore simtape`) use the same drive. Its time is the real one, or a virtual one that only the
//! drive and [`SimClock::advance`] move.
//!
//! Rules of `st`: Documentation/scsi/st.rst of Linux, "EOM Behaviour", and trials in a guest.

mod cartridge;
mod clock;
mod device;
mod motor;
mod rmt;
mod settings;

pub use clock::SimClock;
pub use device::SimDevice;
pub use motor::MotorCounters;
pub use rmt::serve_rmt;
pub use settings::{ClockKind, EarlyWarning, SimFault, SimFaultKind, SimSettings};
