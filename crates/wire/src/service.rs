//! The services of a session, by their numbers.
//!
//! A new service is one constant, one row of `SERVICES`, and one entry in the offer of the side that has it. The core of a session
//! knows of a service only its number and this row.

use crate::frame::MAX_DATA;
use minicbor::{Decode, Encode};

/// The number of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(transparent)]
pub struct ServiceNumber(#[n(0)] pub u16);

impl ServiceNumber {
    /// Objects of a repository; see [`crate::object_call`].
    pub const OBJECTS: Self = Self(0);
    /// A way to further connections. The answer is a [`JoinOffer`](crate::message::JoinOffer).
    pub const CONNECTIONS: Self = Self(1);
    /// Commands of this program. The data are the arguments, the answer is the exit code.
    pub const COMMANDS: Self = Self(2);
    /// Standard output of the command that this side has asked for. The data is printed.
    pub const OUTPUT: Self = Self(3);
    /// Standard error of that command.
    pub const ERRORS: Self = Self(4);
    /// The files of the host, for a backup that runs on the other side.
    pub const FILES: Self = Self(5);
    /// The target of a copy of trees.
    pub const COPY: Self = Self(6);
    /// The file for the report of a command that runs on the other side. The data is the report, and the answer is empty.
    pub const REPORT: Self = Self(7);

    /// A tape drive.
    pub const TAPE: Self = Self(8);

    fn row(self) -> Option<&'static ServiceRow> {
        SERVICES.iter().find(|row| row.number == self)
    }

    /// Returns the words of the service behind "this host does not offer".
    pub fn words(self) -> &'static str {
        self.row().map_or("this service", |row| row.words)
    }

    /// Returns the bytes of data of a call at most, whoever makes it; `None` if no service has the number. Calls of
    /// [`ServiceNumber::OBJECTS`] say it themselves.
    pub fn max_body_bytes(self) -> Option<u64> {
        self.row().map(|row| row.max_body_bytes)
    }
}

/// What is fixed of a service.
#[derive(Debug)]
struct ServiceRow {
    number: ServiceNumber,
    words: &'static str,
    max_body_bytes: u64,
}

const fn row(number: ServiceNumber, words: &'static str, max_body_bytes: u64) -> ServiceRow {
    ServiceRow {
        number,
        words,
        max_body_bytes,
    }
}

/// All services.
const SERVICES: [ServiceRow; 9] = [
    row(ServiceNumber::OBJECTS, "a repository", 0),
    row(ServiceNumber::CONNECTIONS, "further connections", 0),
    // As the system allows a program at most.
    row(ServiceNumber::COMMANDS, "to run commands", 2 << 20),
    row(ServiceNumber::OUTPUT, "to print", MAX_DATA as u64),
    row(ServiceNumber::ERRORS, "to print", MAX_DATA as u64),
    // A tar of files of a copy may have 16 MiB, the map of a file as much.
    row(ServiceNumber::FILES, "its files", 24 << 20),
    row(ServiceNumber::COPY, "to copy trees", 24 << 20),
    row(ServiceNumber::REPORT, "to write a report", 24 << 20),
    // A batch of records has 4 MiB and one record of 16 MiB.
    row(ServiceNumber::TAPE, "a tape drive", 24 << 20),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_one_row_at_its_number() {
        for (place, row) in SERVICES.iter().enumerate() {
            assert_eq!(usize::from(row.number.0), place, "{row:?}");
        }
        let unknown = ServiceNumber(999);
        assert_eq!(
            (unknown.words(), unknown.max_body_bytes()),
            ("this service", None)
        );
    }
}
