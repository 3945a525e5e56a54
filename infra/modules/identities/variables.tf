variable "project" {
  type = string
}

variable "cluster_project" {
  type = string
}

variable "cluster_number" {
  type = string
}

variable "workload_pool" {
  description = "Of the cluster: it exists once the cluster does."
  type        = string
}

variable "region" {
  type = string
}

variable "bucket" {
  type = string
}

variable "source_datasets" {
  type = list(string)
}

variable "target_datasets" {
  type = list(string)
}

variable "images" {
  description = "The repositories that nodes pull from."
  type        = map(string)
}

variable "packages" {
  description = "The repositories that Airflow installs from."
  type        = map(string)
}

variable "jobs" {
  type = list(string)
}

variable "streams" {
  type = map(object({
    ordering = bool
    files    = optional(string)
  }))
}

variable "alloydb" {
  type = bool
}

variable "operators" {
  type = list(string)
}

variable "airflow_account" {
  type = object({ email = string, name = string, member = string })
}

variable "node_account" {
  type = object({ email = string, name = string, member = string })
}

variable "streams_account" {
  type = object({ email = string, name = string, member = string })
}

variable "subscriptions" {
  type = map(string)
}

variable "dead_letter_topics" {
  type = map(string)
}
