terraform {
  # OpenTofu or Terraform: from 1.9 on, a variable's validation may look at other variables.
  required_version = ">= 1.9"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 6.50"
    }
  }
}

provider "google" {
  project = var.project_id
  region  = var.region
  # The budget's API wants to know who pays for the call.
  user_project_override = true
  billing_project       = var.project_id
  default_labels        = local.labels
}
