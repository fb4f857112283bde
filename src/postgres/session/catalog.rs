//! Where databases are, and which tablespaces there are: what PostgreSQL's WAL does not repair if it changes during a backup.
//!
//! A database is moved by copying its directory, and WAL says only that: recovery copies what the backup has of it, which may be
//! nothing any more. A tablespace is created anew where it was, whatever is there when somebody recovers.

use super::{Session, answer::Row};
use crate::{error::Result, format::root::Name};

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    /// Databases: their numbers, their names, and the numbers of their tablespaces.
    pub databases: Vec<(u32, Name, u32)>,
    /// Numbers and names of the tablespaces.
    pub tablespaces: Vec<(u32, Name)>,
}

impl Session {
    /// As it is now.
    ///
    /// # Errors
    /// The server's.
    pub fn catalog(&mut self) -> Result<Catalog> {
        let sql = "SELECT oid, textsend(datname::text), dattablespace FROM pg_database ORDER BY oid";
        let rows = self.raw_rows("could not ask the server where its databases are", sql, &[])?;
        let database = |row: &Row| Ok((row.get(0)?, Name(row.get(1)?), row.get(2)?));
        let databases = rows.iter().map(database).collect::<Result<_>>()?;
        Ok(Catalog { databases, tablespaces: self.tablespaces()? })
    }
}

impl Catalog {
    /// A database that is in another tablespace now.
    pub fn moved<'a>(&self, now: &'a Self) -> Option<&'a Name> {
        let was_elsewhere = |(oid, _, space): &&(u32, Name, u32)| {
            self.databases.iter().any(|(known, _, before)| known == oid && before != space)
        };
        now.databases.iter().find(was_elsewhere).map(|(_, name, _)| name)
    }

    /// Was this tablespace made since?
    pub fn is_new(&self, oid: u32) -> bool {
        self.tablespaces.iter().all(|(known, _)| *known != oid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_moved_is_found_and_what_was_made_or_dropped_was_not_moved() {
        let of = |databases: &[(u32, u32)]| Catalog {
            databases: databases.iter().map(|(oid, space)| (*oid, format!("{oid}").as_str().into(), *space)).collect(),
            tablespaces: vec![(1663, "pg_default".into())],
        };
        let before = of(&[(1, 1663), (5, 1663), (6, 1663)]);
        assert_eq!(before.moved(&of(&[(1, 1663), (6, 1663), (7, 9)])), None);
        assert_eq!(before.moved(&of(&[(1, 1663), (5, 9)])), Some(&"5".into()));
        assert!(before.is_new(9) && !before.is_new(1663));
    }
}
