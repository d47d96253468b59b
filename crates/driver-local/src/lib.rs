//! The local driver.
