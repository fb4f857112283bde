//! Where databases are, and which tablespaces there are: what PostgreSQL's WAL does not repair if it changes during a backup.
//!
//! A database is moved by copying its directory, and WAL says only that: recovery copies what the backup has of it, which may be
//! nothing any more. A tablespace is created anew where it was, whatever is there when somebody recovers.

use super::{Session, rows::SqlRow};
use crate::{error::Result, format::root::EntryName, postgres::file_copies::FileCopies};

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    /// All databases, by their numbers.
    pub databases: Vec<DatabaseRow>,
    /// Numbers and names of the tablespaces.
    pub tablespaces: Vec<(u32, EntryName)>,
}

/// What the catalog says of a database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatabaseRow {
    /// Its number.
    pub oid: u32,
    /// Its name.
    pub name: EntryName,
    /// The number of its tablespace.
    pub space: u32,
    /// Are others made from it?
    pub is_template: bool,
    /// The transaction that wrote this.
    pub version: String,
}

impl Session {
    /// As it is now.
    ///
    /// # Errors
    /// The server's.
    pub fn catalog(&mut self) -> Result<Catalog> {
        let sql = "SELECT oid, textsend(datname::text), dattablespace, datistemplate, xmin::text FROM pg_database ORDER BY oid";
        let rows = self.raw_rows("could not ask the server where its databases are", sql, &[])?;
        let database = |row: &SqlRow| {
            let (oid, name, space) = (row.get(0)?, EntryName(row.get(1)?), row.get(2)?);
            Ok(DatabaseRow {
                oid,
                name,
                space,
                is_template: row.get(3)?,
                version: row.get(4)?,
            })
        };
        let databases = rows.iter().map(database).collect::<Result<_>>()?;
        Ok(Catalog {
            databases,
            tablespaces: self.tablespaces()?,
        })
    }
}

impl Catalog {
    /// A database that is in another tablespace now.
    pub fn moved<'a>(&self, now: &'a Self) -> Option<&'a EntryName> {
        let was_elsewhere = |one: &&DatabaseRow| {
            self.of(one.oid)
                .is_some_and(|before| before.space != one.space)
        };
        now.databases
            .iter()
            .find(was_elsewhere)
            .map(|one| &one.name)
    }

    /// A database that is there `now` and was copied in the meantime such that recovery cannot copy it. It can where that was from a
    /// template, which nobody works in.
    pub fn spoiled<'a>(&self, now: &'a Self, copied: &[FileCopies]) -> Option<&'a EntryName> {
        let is_template = |oid| {
            self.of(oid)
                .and(now.of(oid))
                .is_some_and(|from| from.is_template)
        };
        let spoils = |copy: &&FileCopies| copy.from == copy.database || !is_template(copy.from);
        copied
            .iter()
            .filter(spoils)
            .find_map(|copy| now.of(copy.database))
            .map(|one| &one.name)
    }

    /// A database that is there `now` and was not.
    pub fn made<'a>(&self, now: &'a Self) -> Option<&'a EntryName> {
        now.databases
            .iter()
            .find(|one| self.of(one.oid).is_none())
            .map(|one| &one.name)
    }

    fn of(&self, oid: u32) -> Option<&DatabaseRow> {
        self.databases.iter().find(|one| one.oid == oid)
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
            databases: databases
                .iter()
                .map(|&(oid, space)| {
                    let (name, is_template) = (format!("{oid}").as_str().into(), oid == 1);
                    DatabaseRow {
                        oid,
                        name,
                        space,
                        is_template,
                        ..DatabaseRow::default()
                    }
                })
                .collect(),
            tablespaces: vec![(1663, "pg_default".into())],
        };
        let before = of(&[(1, 1663), (5, 1663), (6, 1663)]);
        assert_eq!(before.moved(&of(&[(1, 1663), (6, 1663), (7, 9)])), None);
        assert_eq!(before.moved(&of(&[(1, 1663), (5, 9)])), Some(&"5".into()));
        assert!(before.is_new(9) && !before.is_new(1663));
        let (now, copy) = (of(&[(1, 1663), (5, 1663), (7, 1663)]), |database, from| {
            [FileCopies { database, from }]
        });
        assert_eq!(before.spoiled(&now, &copy(7, 1)), None, "from a template");
        assert_eq!(before.spoiled(&now, &copy(8, 5)), None, "and dropped again");
        for (database, from, name) in [(7, 5, "7"), (7, 6, "7"), (5, 5, "5")] {
            assert_eq!(
                before.spoiled(&now, &copy(database, from)),
                Some(&name.into()),
                "{database} from {from}"
            );
        }
    }
}
