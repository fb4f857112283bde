//! What a server answers, whatever it is: a value that cannot be understood is an error.

use super::{Session, connect};
use crate::{
    error::{Error, ErrorKind, Result},
    format::root::EntryName,
};
use postgres::types::{FromSql, ToSql, Type};

/// One row.
pub(super) struct SqlRow(pub(super) postgres::Row);

impl SqlRow {
    /// Column `at`.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] if it is of another type, or text that is not in UTF-8.
    pub(super) fn get<'a, T: FromSql<'a>>(&'a self, at: usize) -> Result<T> {
        let failed = |error| {
            let name = self.0.columns().get(at).map_or("", |column| column.name());
            Error::new(
                ErrorKind::Unsupported,
                format!("cannot understand the server's answer: column {at}, {name:?}"),
            )
            .because(connect::reason(&error))
        };
        self.0.try_get(at).map_err(failed)
    }

    /// Column `at`, bytes, as a name; none if it is null.
    pub(super) fn name(&self, at: usize) -> Result<Option<EntryName>> {
        Ok(self.get::<Option<Vec<u8>>>(at)?.map(EntryName))
    }
}

impl Session {
    /// As [`Session::rows`], but `textsend` gives what is stored, byte for byte: names of databases, and paths, are in the encoding of
    /// whoever made them, and the server would translate them, or refuse to.
    pub(super) fn raw_rows(
        &mut self,
        what: &str,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<SqlRow>> {
        let encode =
            |encoding: &str| format!("SELECT set_config('client_encoding', '{encoding}', false)");
        self.rows(what, &encode("SQL_ASCII"), &[])?;
        let rows = self.rows(what, sql, params);
        self.rows(what, &encode("UTF8"), &[])?;
        rows
    }

    /// The one row of that.
    pub(super) fn raw_row(
        &mut self,
        what: &str,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<SqlRow> {
        one(what, self.raw_rows(what, sql, params)?)
    }

    /// The one row of an answer.
    pub(super) fn row(
        &mut self,
        what: &str,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<SqlRow> {
        one(what, self.rows(what, sql, params)?)
    }

    pub(super) fn rows(
        &mut self,
        what: &str,
        sql: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<SqlRow>> {
        match self.client()?.query_typed(sql, params) {
            Ok(rows) => Ok(rows.into_iter().map(SqlRow).collect()),
            Err(error) if self.is_closed() || connect::is_fatal(&error) => Err(self.lost(&error)),
            Err(error) => {
                let failed = connect::failed(what, &error);
                if self.slot.take().is_some() {
                    self.dropped = Some(failed.line());
                }
                Err(failed)
            }
        }
    }
}

fn one(what: &str, mut rows: Vec<SqlRow>) -> Result<SqlRow> {
    rows.pop()
        .ok_or_else(|| Error::new(ErrorKind::System, what).because("the server gave no row"))
}
