-- name: ping
select 1
