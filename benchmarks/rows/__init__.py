"""What is measured, one module a family; `catalogue` names them all."""
