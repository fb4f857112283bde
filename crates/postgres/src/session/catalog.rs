//! The server's databases and tablespaces: changes that PostgreSQL's WAL cannot repair in a backup.
//!
//! The server moves a database by copying its directory, and WAL records only the copy. Recovery
//! copies the files in the backup, which may be incomplete by then. Recovery makes a new tablespace
//! at its original path, whatever is there.

use super::{Session, rows::stored_bytes};
use crate::file_copies::FileCopies;
use fullbore_format::{error::Result, root::EntryName};

/// The databases and tablespaces at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    /// All databases, sorted by OID.
    pub databases: Vec<DatabaseRow>,
    pub tablespaces: Vec<(u32, EntryName)>,
}

/// A row of `pg_database`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatabaseRow {
    pub oid: u32,
    pub name: EntryName,
    /// OID of its tablespace.
    pub space: u32,
    /// True if the database is a template.
    pub is_template: bool,
    /// The transaction that wrote this row.
    pub version: String,
}

impl Session {
    /// Reads the catalog as it is now.
    ///
    /// # Errors
    /// The server's.
    pub fn catalog(&mut self) -> Result<Catalog> {
        let sql = concat!(
            "SELECT oid, ",
            stored_bytes!("datname::text"),
            ", dattablespace, datistemplate, xmin::text FROM pg_database ORDER BY oid"
        );
        let rows = self.rows("could not ask the server where its databases are", sql, &[])?;
        let databases = rows
            .iter()
            .map(|row| {
                let oid = row.get(0)?;
                let name = EntryName(row.get(1)?);
                let space = row.get(2)?;
                Ok(DatabaseRow {
                    oid,
                    name,
                    space,
                    is_template: row.get(3)?,
                    version: row.get(4)?,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Catalog {
            databases,
            tablespaces: self.tablespaces()?,
        })
    }
}

impl Catalog {
    /// Returns a database that is in another tablespace `now`.
    pub fn moved_database<'a>(&self, now: &'a Self) -> Option<&'a EntryName> {
        now.databases
            .iter()
            .find(|one| {
                self.database(one.oid)
                    .is_some_and(|earlier| earlier.space != one.space)
            })
            .map(|one| &one.name)
    }

    /// Returns a database of `now` that was copied in the meantime in a way that recovery cannot
    /// redo. Recovery can redo a copy of a template, because no one changes a template.
    pub fn spoiled_copy<'a>(&self, now: &'a Self, copied: &[FileCopies]) -> Option<&'a EntryName> {
        let is_template = |oid| {
            self.database(oid)
                .and(now.database(oid))
                .is_some_and(|template| template.is_template)
        };
        copied
            .iter()
            .filter(|copy| copy.from == copy.database || !is_template(copy.from))
            .find_map(|copy| now.database(copy.database))
            .map(|one| &one.name)
    }

    /// Returns a database of `now` that did not exist before.
    pub fn new_database<'a>(&self, now: &'a Self) -> Option<&'a EntryName> {
        now.databases
            .iter()
            .find(|one| self.database(one.oid).is_none())
            .map(|one| &one.name)
    }

    fn database(&self, oid: u32) -> Option<&DatabaseRow> {
        self.databases.iter().find(|one| one.oid == oid)
    }

    /// Returns whether this tablespace was made since.
    pub fn is_new(&self, oid: u32) -> bool {
        self.tablespaces.iter().all(|(known, _)| *known != oid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_database_in_another_tablespace_has_moved() {
        let catalog_of = |databases: &[(u32, u32)]| Catalog {
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
        let before = catalog_of(&[(1, 1663), (5, 1663), (6, 1663)]);
        assert_eq!(
            before.moved_database(&catalog_of(&[(1, 1663), (6, 1663), (7, 9)])),
            None
        );
        assert_eq!(
            before.moved_database(&catalog_of(&[(1, 1663), (5, 9)])),
            Some(&"5".into())
        );
        assert!(before.is_new(9) && !before.is_new(1663));
        let (now, copy) = (
            catalog_of(&[(1, 1663), (5, 1663), (7, 1663)]),
            |database, start| {
                [FileCopies {
                    database,
                    from: start,
                }]
            },
        );
        assert_eq!(
            before.spoiled_copy(&now, &copy(7, 1)),
            None,
            "from a template"
        );
        assert_eq!(
            before.spoiled_copy(&now, &copy(8, 5)),
            None,
            "and dropped again"
        );
        for (database, start, name) in [(7, 5, "7"), (7, 6, "7"), (5, 5, "5")] {
            assert_eq!(
                before.spoiled_copy(&now, &copy(database, start)),
                Some(&name.into()),
                "{database} from {start}"
            );
        }
    }
}
