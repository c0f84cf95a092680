//! The one integration-test binary of the domain: golden tables, exhaustive pairs, properties, named cases and the model.

#[path = "domain/cases.rs"]
mod cases;
#[path = "domain/golden.rs"]
mod golden;
#[path = "domain/model/mod.rs"]
mod model;
#[path = "domain/model_tests.rs"]
mod model_tests;
#[path = "domain/properties.rs"]
mod properties;
#[path = "domain/rows.rs"]
mod rows;
#[path = "domain/setups.rs"]
mod setups;
